"""Stored episodes → SFT data: JSON lines in the form chat models are fine-tuned on."""
