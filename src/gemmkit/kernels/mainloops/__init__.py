"""What each kind of mainloop asks of a board: the ways in which a kernel gives its `work`."""
