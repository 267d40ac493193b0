"""What was measured: records, what they depend on, and the choice by them."""
