package serve

// Remembered is how many callers and addresses the rate limits of a server keep.
func (s *Server) Remembered() (callers, addresses int) {
	return s.callers.size(), s.refused.size()
}

func (b *buckets) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.full)
}
