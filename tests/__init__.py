"""A package, so that helpers are found here and not in a library that installs a `tests` of its own."""
