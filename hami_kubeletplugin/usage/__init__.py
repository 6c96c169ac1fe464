"""What containers use of their GPUs, beside what they may.

model  what is known of it
"""
