"""The cluster's epochs: every member's part becomes durable, then one record decides for all."""
