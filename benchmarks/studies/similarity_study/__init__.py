"""The findings about context similarity, measured again on 20,000 texts."""
