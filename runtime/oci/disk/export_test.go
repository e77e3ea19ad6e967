package disk

// SetAttachTries replaces how often a free loop device is looked for, and returns the number before.
func SetAttachTries(n int) (before int) {
	before, attachTries = attachTries, n
	return before
}
