"""What a trained model says of rows and steps that it was not trained on."""
