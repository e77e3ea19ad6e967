package disk

// SetAttachTries replaces how often Make looks for a free loop device.
func (f *Format) SetAttachTries(n int) { f.tries = n }
