package host

// Sweep does at once what the host does every minute.
func (h *Host) Sweep() { h.sweep() }
