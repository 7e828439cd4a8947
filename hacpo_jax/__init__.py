"""Train several different language models together with verifiable rewards."""
