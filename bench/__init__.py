"""Measurements. Data lies on a real disk, figures are reported as measured; nothing here is a test."""
