"""lgov for AutoGen. This release recognises AutoGen and refuses to run it ungoverned; it cannot govern it yet."""
