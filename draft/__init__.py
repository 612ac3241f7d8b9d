"""The workshop of drafts: data, teacher states, training, and what a draft brings."""
