package store

import (
	"context"
	"database/sql"
	"fmt"

	"sandbox.internal/server/lifecycle"
)

// ImageGrants returns which keys may have which images.
func (s *Store) ImageGrants(ctx context.Context) (grants []lifecycle.ImageGrant, err error) {
	rows, err := s.readDB.QueryContext(ctx, `SELECT repository, image, key FROM image_grants`)
	if err != nil {
		return nil, s.damaged("read", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var grant lifecycle.ImageGrant
		if err := rows.Scan(&grant.Repository, &grant.Image, &grant.Key); err != nil {
			return nil, s.damaged("read", err)
		}
		grants = append(grants, grant)
	}
	if err := rows.Err(); err != nil {
		return nil, s.damaged("read", err)
	}
	return grants, nil
}

// ChangeImageGrants adds and removes grants: all or nothing. Adding a present grant and removing a
// missing one succeed.
func (s *Store) ChangeImageGrants(ctx context.Context, add, remove []lifecycle.ImageGrant) error {
	return s.writer.do(ctx, func(stmts *statements) error {
		for _, change := range []struct {
			stmt   *sql.Stmt
			grants []lifecycle.ImageGrant
		}{{stmts.addGrant, add}, {stmts.removeGrant, remove}} {
			for _, grant := range change.grants {
				if err := execute(change.stmt, grant.Repository, grant.Image, grant.Key); err != nil {
					return fmt.Errorf("store: change grants of images: %w", err)
				}
			}
		}
		return nil
	})
}
