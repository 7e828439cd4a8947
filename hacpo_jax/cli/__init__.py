"""The door: what each verb of the command line does."""
