package inside

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const transferSize = 256 << 20

// Transfers has files going up and down, one at a time.
func Transfers() measure.Group {
	return measure.Sharing(withServers,
		measure.Single(measure.Row{Name: "upload", What: "multipart upload: written, synced, renamed",
			Floor: "a raw body, written and synced by a net/http handler",
			Unit:  measure.MebiPerSec, Target: measure.Ratio(0.8), Gate: true},
			func(ctx context.Context, run *measure.Run, with servers) (measure.Pair, error) {
				c, target := rig.NewContent(run.Bytes(transferSize)), filepath.Join(with.dir, "uploaded")
				return run.InTurns(ctx, run.Rounds(9, 3), measure.Sides{
					Ours: func(ctx context.Context) (float64, error) {
						began := time.Now()
						err := c.UploadTo(ctx, with.daemon, target)
						return measure.Speed(c.Size, began), err
					},
					Floor: func(ctx context.Context) (float64, error) {
						began := time.Now()
						err := c.UploadToFloor(ctx, with.floor)
						return measure.Speed(c.Size, began), err
					},
				})
			}),
		measure.Single(measure.Row{Name: "download", What: "download of a file",
			Floor: "a net/http handler with `http.ServeFile`",
			Unit:  measure.MebiPerSec, Target: measure.Ratio(0.95)},
			measureDownload))
}

// servers are a daemon and a minimal server, and a directory that both can write.
type servers struct {
	daemon rig.Execd
	floor  *rig.Process
	dir    string
}

func withServers(ctx context.Context, run *measure.Run, do func(servers) error) error {
	p, daemon, err := rig.StartExecd(ctx, run)
	if err != nil {
		return err
	}
	defer p.Stop()
	floor, err := rig.StartFloor(ctx, run)
	if err != nil {
		return err
	}
	defer floor.Stop()
	dir, err := run.Directory("transfer")
	if err != nil {
		return err
	}
	return do(servers{daemon, floor, dir})
}

func measureDownload(ctx context.Context, run *measure.Run, with servers) (measure.Pair, error) {
	c, source := rig.NewContent(run.Bytes(transferSize)), filepath.Join(with.dir, "source")
	if err := c.Save(source); err != nil {
		return measure.Pair{}, err
	}
	path := "?path=" + url.QueryEscape(source)
	buffer := make([]byte, 256<<10)
	return run.InTurns(ctx, run.Rounds(15, 3), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := with.daemon.Call(ctx, http.MethodGet, "/files/download"+path, "", nil)
			if err != nil {
				return 0, err
			}
			err = c.Compare(response, buffer)
			return measure.Speed(c.Size, began), err
		},
		Floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := with.floor.Get(ctx, "/download"+path)
			if err != nil {
				return 0, err
			}
			err = c.Compare(response, buffer)
			return measure.Speed(c.Size, began), err
		},
	})
}
