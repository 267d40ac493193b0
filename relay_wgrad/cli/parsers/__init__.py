"""What the commands take: one file a command, with `add_parser`; none of them loads TVM."""
