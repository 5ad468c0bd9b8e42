"""What people look at: an attempt step by step, a policy replayed over a store, policy test cases."""
