"""One file per signature of a known hack; `palomar.detectors.signature` lists and runs them."""
