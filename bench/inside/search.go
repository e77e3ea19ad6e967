package inside

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sandbox.internal/bench/measure"
)

const (
	searchDirectories = 100
	searchEach        = 1000 // files in each of them
)

// Search has a search that finds every file of a large tree, which the kernel has in its memory.
func Search() measure.Group {
	return measure.Sharing(withDaemon,
		measure.Single(measure.Row{Name: "search", What: "search that finds 100 000 files, answer decoded",
			Floor: "`filepath.WalkDir` with the facts of each file",
			Unit:  measure.Milliseconds, Target: measure.Ours(1000), Gate: true},
			measureSearch))
}

func measureSearch(ctx context.Context, run *measure.Run, with daemonAndWorker) (measure.Pair, error) {
	root, err := run.Directory("search")
	if err != nil {
		return measure.Pair{}, err
	}
	directories := searchDirectories
	if run.Scale != measure.ScaleFull {
		directories /= 5
	}
	files := directories * searchEach
	for i := range directories {
		directory := filepath.Join(root, fmt.Sprint("directory-", i))
		if err := os.Mkdir(directory, 0o755); err != nil {
			return measure.Pair{}, err
		}
		for j := range searchEach {
			if err := os.WriteFile(filepath.Join(directory, fmt.Sprint("file-", j, ".txt")), nil,
				0o644); err != nil {
				return measure.Pair{}, err
			}
		}
	}
	target := "/files/search?pattern=" + url.QueryEscape("**/*.txt") + "&path=" +
		url.QueryEscape(root)
	return run.InTurns(ctx, run.Rounds(9, 3), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := with.daemon.Call(ctx, http.MethodGet, target, "", nil)
			if err != nil {
				return 0, err
			}
			defer response.Body.Close()
			var found []struct{}
			if err := json.NewDecoder(response.Body).Decode(&found); err != nil {
				return 0, err
			}
			took := measure.Elapsed(began)
			if len(found) != files {
				return 0, fmt.Errorf("%w: %d files were found", measure.ErrLost, len(found))
			}
			return took, nil
		},
		Floor: with.floor.Job("walk", root, strconv.Itoa(files)),
	})
}
