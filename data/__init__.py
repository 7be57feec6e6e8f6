"""What happened: interactions, where they are kept, and how foreign logs become interactions."""
