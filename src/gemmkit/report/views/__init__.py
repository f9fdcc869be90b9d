"""What pages draw: a module for each kind of view makes the data that its script shows."""
