"""Time and memory of one layer's attention and of decoding, every contestant in turns; tables and figures of both."""
