"""Inputs, float64 reference and error bounds: is a result right?"""
