"""The divergences that training minimises."""
