"""Where rows of a batch go: `sinks` says what a sink is, the other modules are one kind each."""
