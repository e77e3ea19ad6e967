package keeper

// PID returns the process id of the keeper that the client is connected to, 0 when there is none.
func (c *Client) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return 0
	}
	return c.link.pid
}

// ReadStart returns the start time of a process.
func ReadStart(pid int) (uint64, error) {
	s, err := readStat(pid)
	return s.start, err
}
