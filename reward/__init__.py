"""What is paid: the reward spec, its terms, scoring, and the ledger of samples."""
