"""Policies: each goes around any LM and is one itself, so they nest in any order. One file each;
`policy.py` is what they have in common. Import them from `bae.lm`."""
