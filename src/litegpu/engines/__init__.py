"""What runs an opened model: the whole of it in one official interpreter, or partitions, divided among delegates.

`Interpreter` holds exactly one engine and asks it for everything that depends on which it is; what changes that
(allocation, which may find that no delegate can do its part; another shape) gives the engine that goes on."""
