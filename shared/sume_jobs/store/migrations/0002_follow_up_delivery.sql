-- What a follow-up's delivery needs to remember between two attempts: the targets that have it
-- already, so that one which is out of order does not make another one receive it again and
-- again, and why the last attempt failed.

alter table follow_up
  add column sent_to    text[] not null default '{}',
  add column last_error text;
