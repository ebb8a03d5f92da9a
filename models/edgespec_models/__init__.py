"""The models EdgeSpec ships and makes: the embedded pair, and growing it to the cost of a large one."""
