"""Every BERT in, every BERT out: Google's, Hugging Face's and keras-hub's formats, heads included."""
