package users

import (
	"slices"
	"syscall"
)

// containerIDs maps the ids of a container with a range, and these ids beyond it, to those of the
// host.
func containerIDs(first int, beyond []uint32) []syscall.SysProcIDMap {
	own := Size - len(beyond)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: own}}
	for i, id := range beyond {
		ids = append(ids, syscall.SysProcIDMap{ContainerID: int(id), HostID: first + own + i, Size: 1})
	}
	return ids
}

// idsOf are those of a range with these ids beyond it, and reserved.
func idsOf(first int, beyond []uint32) []syscall.SysProcIDMap {
	free := reserved
	for slices.Contains(beyond, uint32(free)) { //nolint:gosec // it is within Size and a few more
		free++
	}
	return append(containerIDs(first, beyond), syscall.SysProcIDMap{ContainerID: free, HostID: 0, Size: 1})
}

// Beyond returns those of a container's ids that a range does not have otherwise, sorted: they take
// the place of its last ones. It returns false when there are too many.
func Beyond(ids []uint32) ([]uint32, bool) {
	var beyond []uint32
	for {
		least := uint32(Size - len(beyond)) //nolint:gosec // positive
		added := false
		for _, id := range ids {
			if id >= least && !slices.Contains(beyond, id) {
				beyond, added = append(beyond, id), true
			}
		}
		if len(beyond) > maxBeyond {
			return nil, false
		}
		if !added {
			slices.Sort(beyond)
			return beyond, true
		}
	}
}
