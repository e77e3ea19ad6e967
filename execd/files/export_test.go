package files

// WithWalkMemory makes searches and listings hold fewer bytes.
func WithWalkMemory(f *Files, bytes int) { f.walkMemory = bytes }

// Prepare reads a file for a replacement, and returns what puts the new content in its place.
func Prepare(f *Files, path string, r Replacement) (commit func() error, err error) {
	e, _, err := f.prepareEdit(path, r)
	return func() error { return e.commit(unasked) }, err
}

// LockPlace keeps content from being put at a path until unlock is called. waiting reports how many
// callers wait to put some there.
func LockPlace(f *Files, path string) (unlock func(), waiting func() int, err error) {
	unlock, err = f.places.lock(path)
	return unlock, func() int {
		f.places.mu.Lock()
		defer f.places.mu.Unlock()
		for _, h := range f.places.held {
			return h.count - 1
		}
		return 0
	}, err
}
