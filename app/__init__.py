"""How people and programs reach Palomar: command line and console."""
