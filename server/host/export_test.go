package host

// Sweep does at once what the host does every minute.
func (h *Host) Sweep() { h.sweep() }

// AskGuards does at once what the host does every few seconds. It takes and returns those that did
// not answer.
func (h *Host) AskGuards(missed map[*actor]bool) map[*actor]bool { return h.checkGuards(missed) }
