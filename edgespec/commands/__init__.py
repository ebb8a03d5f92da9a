"""What people type: one module or folder per command, with its flags and its words."""
