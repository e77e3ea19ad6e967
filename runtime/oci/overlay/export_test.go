package overlay

import "os"

// TakesEachLayer reports which way Mount and Open go on this kernel.
func TakesEachLayer() bool { return takesEachLayer() }

// MountAtOnce mounts as Mount does on a kernel before 6.8.
func (o Overlay) MountAtOnce(target string) error {
	return o.opened(func(f *directories) error { return f.mountAtOnce(target) })
}

// OpenAtOnce opens as Open does on a kernel before 6.8.
func (o Overlay) OpenAtOnce() (*os.File, error) { return o.openAside() }
