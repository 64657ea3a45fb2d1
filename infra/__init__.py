"""What it takes to run the scripts above; nobody who only reads the paper has to open it."""
