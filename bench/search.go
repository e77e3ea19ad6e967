package main

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
)

const (
	searchDirectories = 100
	searchEach        = 1000 // files in each of them
)

// search has a search that finds every file of a large tree, which the kernel has in its memory.
func search() group {
	return sharing(withDaemon,
		one(row{name: "search", what: "search that finds 100 000 files, answer decoded",
			floor: "`filepath.WalkDir` with the facts of each file",
			unit:  milliseconds, target: ours(1000), gate: true},
			measureSearch))
}

func measureSearch(ctx context.Context, run *bench, with daemonAndWorker) (pair, error) {
	root, err := run.directory("search")
	if err != nil {
		return pair{}, err
	}
	directories := searchDirectories
	if run.scale != scaleFull {
		directories /= 5
	}
	files := directories * searchEach
	for i := range directories {
		directory := filepath.Join(root, fmt.Sprint("directory-", i))
		if err := os.Mkdir(directory, 0o755); err != nil {
			return pair{}, err
		}
		for j := range searchEach {
			if err := os.WriteFile(filepath.Join(directory, fmt.Sprint("file-", j, ".txt")), nil,
				0o644); err != nil {
				return pair{}, err
			}
		}
	}
	target := "/files/search?pattern=" + url.QueryEscape("**/*.txt") + "&path=" +
		url.QueryEscape(root)
	return run.inTurns(ctx, run.rounds(9, 3), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			response, err := with.daemon.call(ctx, http.MethodGet, target, "", nil)
			if err != nil {
				return 0, err
			}
			defer response.Body.Close()
			var found []struct{}
			if err := json.NewDecoder(response.Body).Decode(&found); err != nil {
				return 0, err
			}
			took := elapsed(began)
			if len(found) != files {
				return 0, fmt.Errorf("%w: %d files were found", errLost, len(found))
			}
			return took, nil
		},
		floor: with.floor.one("walk", root, strconv.Itoa(files)),
	})
}
