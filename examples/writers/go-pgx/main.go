// A writer that places and pays orders, and writes an event for each in the transaction that
// changes the order.
//
//	DATABASE_URL=postgres://postgres@localhost/shop go run . 20
//
// The database has the outbox of `walpost init` and the table of examples/writers/shop.sql. An
// order that the database refuses is reported and skipped.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// An Order is a row of public.orders.
type Order struct {
	ID         int64
	Customer   string
	TotalCents int64
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: DATABASE_URL=... writer COUNT")
	}
	count, err := strconv.ParseInt(os.Args[1], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	if err := write(context.Background(), os.Getenv("DATABASE_URL"), count); err != nil {
		log.Fatal(err)
	}
}

// write places and pays the orders 1 to count.
func write(ctx context.Context, database string, count int64) error {
	db, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	// No other schema can replace PostgreSQL's functions, operators and types.
	if _, err := db.Exec(ctx, `SET search_path = pg_catalog, pg_temp`); err != nil {
		return err
	}
	placed, paid := 0, 0
	for id := int64(1); id <= count; id++ {
		order := Order{ID: id, Customer: fmt.Sprintf("customer %d", id%7), TotalCents: id * 100}
		if err := place(ctx, db, order); err != nil {
			log.Printf("order %d is not placed: %v", id, err)
		} else {
			placed++
		}
		if err := pay(ctx, db, order); err != nil {
			log.Printf("order %d is not paid: %v", id, err)
		} else {
			paid++
		}
	}
	fmt.Printf("placed %d, paid %d\n", placed, paid)
	return nil
}

const insertEvent = `INSERT INTO public.outbox
                       (aggregate_type, aggregate_id, event_type, payload, headers)
                     VALUES ('order', $1, $2, $3::text::jsonb, $4::text::jsonb)`

const headers = `{"source": "shop"}`

// place writes the order and its event, one statement after the other.
func place(ctx context.Context, db *pgx.Conn, order Order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx,
			`INSERT INTO public.orders (id, customer, total_cents) VALUES ($1, $2, $3)`,
			order.ID, order.Customer, order.TotalCents)
		if err != nil {
			return err
		}
		payload, err := json.Marshal(map[string]any{
			"customer": order.Customer, "total_cents": order.TotalCents,
		})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, insertEvent,
			strconv.FormatInt(order.ID, 10), "order_placed", string(payload), headers)
		return err
	})
}

var errNotPlaced = errors.New("there is no such order to pay")

// pay sends the change and its event in one round trip, as a batch.
func pay(ctx context.Context, db *pgx.Conn, order Order) error {
	payload, err := json.Marshal(map[string]any{"total_cents": order.TotalCents})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		change := batch.Queue(
			`UPDATE public.orders SET status = 'paid' WHERE id = $1 AND status = 'placed'`, order.ID)
		change.Exec(func(done pgconn.CommandTag) error {
			if done.RowsAffected() == 0 {
				// The transaction is rolled back, with the event.
				return errNotPlaced
			}
			return nil
		})
		batch.Queue(insertEvent,
			strconv.FormatInt(order.ID, 10), "order_paid", string(payload), headers)
		return tx.SendBatch(ctx, batch).Close()
	})
}
