"""What is known of a figure: intervals over documents, prompts and seeds, paired differences, and three-way answers."""
