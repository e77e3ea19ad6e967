package images

// Bound replaces the bounds of what an image may take.
func (s *Store) Bound(bytes, entries int64) { s.limits = imageLimits{bytes: bytes, entries: entries} }

// MayAskPlainly and CheckRedirect are rules about hosts that tests cannot reach.
var (
	MayAskPlainly = (*Store).mayAskPlainly
	CheckRedirect = (*Store).checkRedirect
)

// Safe says whether everything is known to be safe on the disk.
func (s *Store) Safe() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.layers {
		if l.Boot != "" {
			return false
		}
	}
	return true
}
