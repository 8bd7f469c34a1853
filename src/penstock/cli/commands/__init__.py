"""What each command takes. The work is in the modules of the folder above."""
