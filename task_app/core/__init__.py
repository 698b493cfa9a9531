"""Values and protocols every other layer speaks in. No I/O; standard library and pydantic only."""
