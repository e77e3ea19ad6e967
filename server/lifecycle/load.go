package lifecycle

// HostLoad is how busy the machine is that runs the sandboxes.
type HostLoad struct {
	CPUs             int     // processors that are online
	CPUUsedPercent   float64 // of all processors together, 0 to 100
	MemoryTotalBytes int64
	MemoryUsedBytes  int64 // without page cache that can be dropped
	DiskTotalBytes   int64 // of the file system with the sandboxes' data, without what only root may use
	DiskUsedBytes    int64
}
