"""Charts as Vega-Lite dictionaries: functions of records and theme, without Streamlit and without Altair."""
