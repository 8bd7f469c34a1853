"""The files of a store, told to people: what each is, whether it is sound, and what is in it."""
