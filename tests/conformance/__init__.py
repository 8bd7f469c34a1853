"""One suite for all carriers: what the transport promises, it promises over each of them."""
